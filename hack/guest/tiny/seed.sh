#!/bin/sh
# cloud-init's place. `find` takes network and host name from the seed, `obey` runs its boothook.
# Without a seed the instance goes on that was told to trust what was read (`manual-clean`), and
# any other is a new one of which nothing is known.
set -u
instance=/var/lib/cloud/instance
say() {
  echo "tiny: $*" >/dev/console
}

go_on() {
  if [ ! -e "$instance/manual-clean" ]; then
    rm -f /etc/netplan/50-cloud-init.yaml /etc/hostname
    exit 1
  fi
  cp "$instance/boothook" "$instance/instance-id" /run
  : >/run/seed-found
  exit 0
}

find_seed() {
  mkdir -p /run/seed
  for module in isofs sr_mod virtio_scsi ata_piix; do
    modprobe -q "$module"
  done
  tries=20
  until disk=$(blkid -t LABEL=cidata) && mount -t iso9660 -o ro "$disk" /run/seed; do
    tries=$((tries - 1))
    if [ "$tries" -eq 0 ]; then
      say "no seed with the label cidata"
      go_on
    fi
    usleep 50000
  done
  say "seed on $disk"
  for file in meta-data user-data vendor-data network-config; do
    if [ ! -s "/run/seed/$file" ]; then
      say "the seed has no $file"
      exit 1
    fi
  done
  mkdir -p /etc/netplan "$instance"
  (umask 077; cat /run/seed/network-config >/etc/netplan/50-cloud-init.yaml)
  sed -n 's/^local-hostname: "\(.*\)"$/\1/p' /run/seed/meta-data >/etc/hostname
  sed -n 's/^instance-id: "\(.*\)"$/\1/p' /run/seed/meta-data >/run/instance-id
  if [ "$(head -n 1 /run/seed/vendor-data)" != "#cloud-config-archive" ]; then
    say "vendor-data is no #cloud-config-archive"
    exit 1
  fi
  # The content of the first part, a literal block of four more columns.
  awk '
    /^- type: / { part++; wanted = part == 1 && $3 == "text/cloud-boothook"; inside = 0; next }
    /^  content: \|$/ { inside = wanted; next }
    inside { sub(/^    /, ""); print }
  ' /run/seed/vendor-data | sed 1d >/run/boothook
  cp /run/boothook /run/instance-id "$instance"
  # Of the user's part this alone is done, in the last stage: a first boot that takes its time.
  sed -n 's/^- \(sleep [0-9]*\)$/\1/p' /run/seed/user-data >/run/user-scripts
  umount /run/seed
  : >/run/seed-found
}

obey() {
  if [ ! -s /run/boothook ]; then
    say "vendor-data has no boothook"
    exit 1
  fi
  INSTANCE_ID=$(cat /run/instance-id) sh /run/boothook >/dev/console 2>&1 ||
    say "the boothook failed"
}

case "$1" in
  find) find_seed ;;
  obey) obey ;;
esac
