#!/bin/sh
# The initial RAM disk: the disk's drivers, and on to the partition that the command line names.
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in virtio_pci virtio_blk virtio_scsi sd_mod ata_piix crc32c_generic ext4; do
  modprobe -q "$module"
done
label=$(sed -n 's/.*root=\(LABEL=[a-z-]*\).*/\1/p' /proc/cmdline)
tries=100
until disk=$(findfs "$label" 2>/dev/null); do
  tries=$((tries - 1))
  if [ "$tries" -eq 0 ]; then
    echo "no disk with $label" >/dev/console
    poweroff -f
  fi
  usleep 50000
done
mount -t ext4 -o noatime "$disk" /mnt
umount /sys
umount /proc
mount --move /dev /mnt/dev
exec switch_root /mnt /sbin/init
