#!/bin/sh
# One boot: drivers, seed, network, units.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir -p /run/units /run/lock
tell() {
  read -r up _ </proc/uptime
  echo "tiny $up: $*" >/dev/console
}
tell boot

for module in virtio_net virtio_console virtio-rng; do
  modprobe -q "$module"
done
# udev's place: ports by their names.
mkdir -p /dev/virtio-ports
for port in /sys/class/virtio-ports/*; do
  [ -s "$port/name" ] && ln -sf "../${port##*/}" "/dev/virtio-ports/$(cat "$port/name")"
done
ip link set lo up

# What an earlier boot was told lies on the disk; only a first one looks for a seed.
if [ ! -e /etc/cloud/cloud-init.disabled ]; then
  /usr/lib/tiny/seed find
fi
[ -s /etc/hostname ] && hostname -F /etc/hostname

# The card that the network's configuration names, and no other.
mac=$(sed -n 's/^ *macaddress: "\(.*\)"$/\1/p' /etc/netplan/50-cloud-init.yaml 2>/dev/null)
name=$(sed -n 's/^ *name: "\(.*\)"$/\1/p' /etc/netplan/50-cloud-init.yaml 2>/dev/null)
card=
for link in /sys/class/net/*; do
  case "$name:${link##*/}" in e\*:e*) card=${link##*/} ;; esac
  [ -n "$mac" ] && [ "$(cat "$link/address")" = "$mac" ] && card=${link##*/}
done
if [ -n "$card" ]; then
  ip link set "$card" up
  udhcpc -b -i "$card" -s /usr/lib/tiny/udhcpc -x "hostname:$(hostname)" -t 100 -T 1 -A 1 \
    >/dev/null 2>&1 &
else
  tell "no network card is named by the seed"
fi

[ -e /run/seed-found ] && /usr/lib/tiny/seed obey
for unit in /etc/systemd/system/multi-user.target.wants/*; do
  [ -e "$unit" ] && systemctl start --no-block "${unit##*/}"
done
[ -e /run/user-scripts ] && sh /run/user-scripts
# Where cloud-init's last stage would have ended.
: >/run/cloud-final
tell "boot ended"
