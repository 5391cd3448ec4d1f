"""What has nothing to do with torch: text from outside, secrets, files, processes, sys.path."""
