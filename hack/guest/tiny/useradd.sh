#!/bin/sh
# useradd OPTION... NAME: a system account with its own group.
for name in "$@"; do :; done
grep -q "^$name:" /etc/passwd && exit 9
echo "$name:x:999:" >>/etc/group
echo "$name:x:999:999::/nonexistent:/usr/sbin/nologin" >>/etc/passwd
