"""What fullbore is measured against, one file a system."""
