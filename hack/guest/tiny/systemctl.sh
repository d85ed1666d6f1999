#!/bin/sh
# systemd's place, as far as our seed and our agent call it.
set -u
verb=
units=
for word in "$@"; do
  case "$word" in
    --*) ;;
    *) if [ -z "$verb" ]; then verb=$word; else units="$units $word"; fi ;;
  esac
done
for unit in $units; do
  case "$verb" in
    enable | start | restart)
      [ -e "/etc/systemd/system/$unit" ] || { echo "no unit $unit" >&2; exit 1; }
      ;;
  esac
done
wants=/etc/systemd/system/multi-user.target.wants
case "$verb" in
  daemon-reload) ;;
  enable)
    mkdir -p "$wants"
    for unit in $units; do ln -sf "../$unit" "$wants/$unit"; done
    ;;
  start | restart)
    for unit in $units; do
      setsid /usr/lib/tiny/run-unit "$unit" "$verb" </dev/null >/dev/console 2>&1 &
    done
    ;;
  poweroff | reboot | halt) "$verb" ;;
  *)
    echo "systemctl $verb is not known here" >&2
    exit 1
    ;;
esac
