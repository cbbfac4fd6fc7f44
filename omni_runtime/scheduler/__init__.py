"""The scheduler: numbers only. It ranks offers, fills batches and keeps the books; it knows no program, no device, no clock."""
