#!/bin/sh
case "$1" in
  deconfig) ip addr flush dev "$interface" scope global ;;
  bound | renew)
    ip addr replace "$ip/${mask:-24}" dev "$interface"
    [ -n "${router:-}" ] && ip route replace default via "${router%% *}" dev "$interface"
    : >/etc/resolv.conf
    for server in ${dns:-}; do echo "nameserver $server" >>/etc/resolv.conf; done
    read -r up _ </proc/uptime
    echo "tiny $up: $1 $ip" >/dev/console
    ;;
esac
