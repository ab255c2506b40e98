"""What is kept: the memory, the audit log, and what removes personal data from both."""
