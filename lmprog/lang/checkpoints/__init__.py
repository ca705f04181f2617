"""What a run has done so far, and the file that keeps it; knows no branches."""
