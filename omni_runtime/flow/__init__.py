"""The flow: runs, channels and loops. It walks programs and says which units are ready; it knows no device and no clock."""
