"""What a person looks at: plots and pages."""
