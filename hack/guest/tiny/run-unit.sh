#!/bin/sh
# Runs one unit: what it requires, then its program, again where it says so.
set -u
unit=$1
file=/etc/systemd/system/$unit
value() { sed -n "s/^$1=//p" "$file"; }

mkdir -p /run/units
if [ "$2" = start ] && [ -e "/run/units/$unit" ]; then
  exit 0
fi
[ -e "/run/units/$unit" ] && kill "$(cat "/run/units/$unit")" 2>/dev/null
echo $$ >"/run/units/$unit"

condition=$(value ConditionPathExists)
case "$condition" in
  '!'*) [ -e "${condition#!}" ] && exit 0 ;;
  ?*) [ -e "$condition" ] || exit 0 ;;
esac
for needed in $(value Requires); do
  systemctl start "$needed"
  tries=200
  until [ -e "/run/units/$needed.done" ]; do
    tries=$((tries - 1))
    if [ "$tries" -eq 0 ] || [ -e "/run/units/$needed.failed" ]; then
      echo "tiny: $unit is not started: $needed failed"
      rm -f "/run/units/$unit"
      exit 1
    fi
    usleep 50000
  done
done
case " $(value After) " in
  *" cloud-final.service "*) while [ ! -e /run/cloud-final ]; do usleep 100000; done ;;
esac

user=$(value User)
command=$(value ExecStart)
files=$(value LimitNOFILE)
[ -n "$files" ] && ulimit -n "$files"
# busybox gives no ambient capability: the kernel's own rule is lifted where a unit has one.
case "$(value AmbientCapabilities)" in
  *CAP_NET_BIND_SERVICE*) sysctl -q -w net.ipv4.ip_unprivileged_port_start=0 ;;
esac
child=
trap '[ -n "$child" ] && kill "$child"; exit 0' TERM
while :; do
  if [ -n "$user" ]; then
    su -s /bin/sh "$user" -c "exec $command" &
  else
    sh -c "exec $command" &
  fi
  child=$!
  wait "$child"
  code=$?
  if [ "$(value Type)" = oneshot ]; then
    if [ "$code" -eq 0 ]; then
      : >"/run/units/$unit.done"
    else
      echo "tiny: $unit ended with $code"
      : >"/run/units/$unit.failed"
    fi
    exit "$code"
  fi
  [ "$(value Restart)" = always ] || exit "$code"
  echo "tiny: $unit ended with $code and is started again"
  sleep "$(value RestartSec)"
done
