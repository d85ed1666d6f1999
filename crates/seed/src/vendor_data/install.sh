#!/bin/sh
# Copies proxyd and its configuration from the seed to the disk and starts it. cloud-init runs
# this in its network stage, before every module, at each boot until the first one has ended:
# so it may run again, also when the seed is gone.
set -eu
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
seed=/run/egress-proxies/seed
config=/etc/egress-proxies/proxyd.json

complain() {
  echo "egress-proxies: $*" >&2
  { echo "egress-proxies: $*" >/dev/console; } 2>/dev/null || :
}

# Another disk may bear the same label: the one with our instance id is ours.
mount_seed() {
  mkdir -p "$seed"
  for disk in /dev/disk/by-label/cidata $(blkid -c /dev/null -t LABEL=cidata -o device || :); do
    mount -t iso9660 -o ro,nosuid,nodev,noexec "$disk" "$seed" 2>/dev/null || continue
    if grep -Fqx "instance-id: \"${INSTANCE_ID:?}\"" "$seed/meta-data"; then
      return 0
    fi
    umount "$seed"
  done
  return 1
}

# place MODE OWNER NAME TARGET: whole or not at all, whenever the machine loses power.
place() {
  mkdir -p "${4%/*}"
  cp "$seed/$3" "$4.new"
  chown "$2" "$4.new"
  chmod "$1" "$4.new"
  sync
  mv -f "$4.new" "$4"
}

if mount_seed; then
  trap 'umount "$seed"' EXIT
  (umask 022; mkdir -p /etc/egress-proxies)
  owner=root:root
  if [ -e "$seed/proxyd" ]; then
    if [ "$(uname -m)" != x86_64 ]; then
      complain "the seed's proxyd is for x86_64, and this machine is $(uname -m)"
      exit 1
    fi
    id -u proxyd >/dev/null 2>&1 ||
      useradd --system --user-group --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin proxyd
    place 0755 root:root proxyd /usr/local/bin/proxyd
    place 0644 root:root proxyd.service /etc/systemd/system/proxyd.service
    place 0644 root:root policy.nft /etc/egress-proxies/policy.nft
    place 0644 root:root egress-proxies-policy.service \
      /etc/systemd/system/egress-proxies-policy.service
    [ -x /usr/sbin/nft ] ||
      complain "nftables is not in this image: proxyd does not start without its rules"
  fi
  if [ -e "$seed/egress-proxies-agent.service" ]; then
    place 0644 root:root egress-proxies-agent.service \
      /etc/systemd/system/egress-proxies-agent.service
  fi
  if id -u proxyd >/dev/null 2>&1; then
    owner=proxyd:$(id -g proxyd)
  fi
  place 0600 "$owner" proxyd.json "$config"
  place 0644 root:root egress-proxies-first-boot.service \
    /etc/systemd/system/egress-proxies-first-boot.service
  if command -v restorecon >/dev/null; then
    restorecon /usr/local/bin/proxyd /etc/systemd/system/proxyd.service \
      /etc/systemd/system/egress-proxies-*.service || :
    restorecon -R /etc/egress-proxies || :
  fi
elif [ ! -e "$config" ]; then
  complain "no disk with the label cidata and the instance id $INSTANCE_ID"
  exit 1
fi

# Should the machine lose power after the seed was taken out, the next boot goes on with what
# cloud-init has read, instead of looking for the seed.
: >/var/lib/cloud/instance/manual-clean

# Each call makes systemd read all units anew, which takes a small machine seconds.
units="proxyd.service egress-proxies-first-boot.service"
if [ -e /etc/systemd/system/egress-proxies-agent.service ]; then
  units="egress-proxies-agent.service $units"
fi
# shellcheck disable=SC2086
systemctl enable $units || complain "not all of these can be enabled: $units"
# The seed is taken out once the proxy has answered: all that a boot without it needs is on the
# disk before the proxy starts.
sync
# cloud-init must go on: nothing here waits for a unit.
# shellcheck disable=SC2086
systemctl restart --no-block $units || complain "not all of these can be started: $units"
