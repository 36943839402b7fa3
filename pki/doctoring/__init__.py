"""What the doctors of both programs look at: this computer, key files, and who answers at an address."""
