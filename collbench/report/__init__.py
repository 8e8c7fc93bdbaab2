"""What people read: plots and pages."""
