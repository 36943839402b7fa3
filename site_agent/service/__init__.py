"""The gate as a service: starts and stops the three processes, enrols, and shows the state of this site."""
