#!/bin/sh
# Installs the distribution's guest agent, which tells the hypervisor this machine's address.
# cloud-init runs this once, in its final stage: after the packages of user-data, before runcmd.
set -u

add_package() {
  if command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q update &&
      apt-get -q -y -o DPkg::Lock::Timeout=300 --no-install-recommends install qemu-guest-agent
  elif command -v dnf >/dev/null; then
    dnf -q -y install qemu-guest-agent
  elif command -v yum >/dev/null; then
    yum -q -y install qemu-guest-agent
  elif command -v zypper >/dev/null; then
    zypper --non-interactive --quiet install qemu-guest-agent
  else
    echo "egress-proxies: no package manager that is known here" >&2
    exit 1
  fi
}

tries=30
until systemctl cat qemu-guest-agent.service >/dev/null 2>&1 || add_package; do
  tries=$((tries - 1))
  if [ "$tries" -eq 0 ]; then
    echo "egress-proxies: qemu-guest-agent cannot be installed" >&2
    exit 1
  fi
  sleep 10
done

systemctl daemon-reload
# Some distributions start it by a udev rule, and their unit cannot be enabled.
systemctl enable qemu-guest-agent.service 2>/dev/null || :
# Without the channel's device the unit waits: cloud-init does not.
systemctl start --no-block qemu-guest-agent.service
