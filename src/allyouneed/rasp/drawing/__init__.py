"""Pictures of RASP programs."""
