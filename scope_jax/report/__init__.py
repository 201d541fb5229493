"""What people look at: progress while a command works, the picture and the page of a run afterwards."""
