"""What operators and monitoring ask the service: health, readiness, figures."""
