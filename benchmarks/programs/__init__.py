"""What compiled programs do on a device, counted in their text, for hardware that need not be there."""
