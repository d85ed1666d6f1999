#!/bin/sh
# systemd's place, as far as our seed and our agent call it.
set -u
verb= unit=
for word in "$@"; do
  case "$word" in
    --*) ;;
    *) if [ -z "$verb" ]; then verb=$word; else unit=$word; fi ;;
  esac
done
wants=/etc/systemd/system/multi-user.target.wants
case "$verb" in
  daemon-reload) ;;
  enable)
    [ -e "/etc/systemd/system/$unit" ] || { echo "no unit $unit" >&2; exit 1; }
    mkdir -p "$wants"
    ln -sf "../$unit" "$wants/$unit"
    ;;
  start | restart)
    [ -e "/etc/systemd/system/$unit" ] || { echo "no unit $unit" >&2; exit 1; }
    setsid /usr/lib/tiny/run-unit "$unit" "$verb" </dev/null >/dev/console 2>&1 &
    ;;
  stop)
    [ -e "/run/units/$unit" ] && kill "$(cat "/run/units/$unit")"
    ;;
  poweroff | reboot | halt) "$verb" ;;
  *)
    echo "systemctl $verb is not known here" >&2
    exit 1
    ;;
esac
