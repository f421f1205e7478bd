"""What is fed to subject and reference, drawn from seeded CPU generators."""
