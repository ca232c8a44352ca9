"""What tests of several packages use: builders, servers, programs that are killed, spoilt inputs."""
