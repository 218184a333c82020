"""What users' tests and ours share: a pytest fixture, a manual clock, a faulty filesystem."""
