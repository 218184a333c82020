"""What users' tests and ours share: a pytest fixture, a clock, a faulty disk, histories."""
