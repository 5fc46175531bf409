"""What a service in production needs: the deployment checklist that `legato doctor -f` and the documentation show."""
