"""What if: the present queue and running set, carried on in the simulator. Nothing here changes anything."""
