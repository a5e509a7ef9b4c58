"""fullbore: pipeline-parallel training that accounts for every idle millisecond."""
