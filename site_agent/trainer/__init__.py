"""The process with the patients: what runs beside a round."""
