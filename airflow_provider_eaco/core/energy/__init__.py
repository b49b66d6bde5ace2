"""What a set of jobs draws and how much its members slow each other down."""
