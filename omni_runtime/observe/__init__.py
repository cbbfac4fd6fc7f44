"""What a run looked like: the recorder, and what is made of it: a timeline, a trace, a live view."""
