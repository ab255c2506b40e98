"""What happens after an answer: recording, judging, releases, the desk, compliance, backup."""
