"""What people look at: admin classes, their pages, the dashboard, pictures."""
