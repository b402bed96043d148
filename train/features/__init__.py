"""What a frozen backbone computes, once for all steps."""
