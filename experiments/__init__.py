"""What is run by hand or by night, and is no test of each change."""
