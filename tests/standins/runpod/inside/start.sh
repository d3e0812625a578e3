#!/bin/sh
# What RunPod's images do when they are given no command: sshd for whoever brought a key.
if [ -n "$PUBLIC_KEY" ]; then
    mkdir -p "$HOME/.ssh"
    printf '%s\n' "$PUBLIC_KEY" >> "$HOME/.ssh/authorized_keys"
    chmod 700 "$HOME/.ssh"
    chmod 600 "$HOME/.ssh/authorized_keys"
    if [ -n "$TRMCLOUD_SSH_PORT" ]; then
        ssh-keygen -q -t ed25519 -N "" -f "$HOME/.ssh/host"
        /usr/sbin/sshd -f /dev/null -h "$HOME/.ssh/host" -p "$TRMCLOUD_SSH_PORT" \
            -o PidFile=none -o "AuthorizedKeysFile=$HOME/.ssh/authorized_keys" -o StrictModes=no \
            -o "SetEnv=PATH=$PATH"
    else
        mkdir -p /run/sshd
        ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
        /usr/sbin/sshd
    fi
fi
exec sleep infinity
