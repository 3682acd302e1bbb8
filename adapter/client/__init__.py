"""What a consumer or a broker imports."""
