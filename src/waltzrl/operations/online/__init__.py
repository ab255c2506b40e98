"""What happens to served traffic after the answer: recording, judging, releases, shadows."""
