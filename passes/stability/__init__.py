"""What made a frame compile again."""
