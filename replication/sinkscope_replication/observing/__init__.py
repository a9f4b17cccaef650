"""What is measured of a trained model for the questions of the study alone."""
