#!/bin/sh
# blkid [-c FILE] -t LABEL=label [-o device]: the CD-ROM or disk that has it as an ISO image.
wanted=
while [ "$#" -gt 0 ]; do
  case "$1" in
    -t) wanted=${2#LABEL=}; shift ;;
    -c | -o) shift ;;
  esac
  shift
done
found=2
for device in /sys/class/block/sr* /sys/class/block/vd* /sys/class/block/sd*; do
  device=/dev/${device##*/}
  [ -b "$device" ] || continue
  label=$(dd if="$device" bs=1 skip=32808 count=32 2>/dev/null | tr -d ' ' | tr -d '\0')
  [ "$(dd if="$device" bs=1 skip=32769 count=5 2>/dev/null)" = CD001 ] || continue
  if [ "$label" = "$wanted" ]; then
    echo "$device"
    found=0
  fi
done
exit "$found"
