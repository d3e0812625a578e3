# Makes the pod's own root out of this machine's, as a container's layer lies over its image, and
# becomes the pod's command. Runs as the first process of fresh namespaces.
#
#   container.sh MOUNTPOINT TOOLS WORKSPACE MOUNT_PATH WORKSPACE_MIB HIDE KEEP ABSENT READY GO ARGV…
#
# HIDE, KEEP and ABSENT are words split at ":". READY and GO are fds of pipes.
set -e
mountpoint=$1 tools=$2 workspace=$3 mount_path=$4 workspace_mib=$5 hide=$6
keep=$7 absent=$8 ready=$9 go=${10}
shift 10

mount --make-rprivate /
mount -t tmpfs -o size=4g,mode=755 tmpfs "$mountpoint"
cd "$mountpoint"
mkdir upper work fs private
mount -t overlay overlay -o "lowerdir=/,upperdir=$mountpoint/upper,workdir=$mountpoint/work" fs

for folder in tmp root opt run var/tmp home mnt media workspace; do
    mkdir -p "private/$folder" "fs/$folder"
    mount --bind "private/$folder" "fs/$folder"
done
chmod 1777 private/tmp private/var/tmp

mkdir private/nothing
touch private/void
IFS=:
for path in $hide; do
    if [ -d "fs$path" ]; then
        mount --bind private/nothing "fs$path"
    elif [ -e "fs$path" ]; then
        mount --bind private/void "fs$path"
    fi
done
for folder in $keep; do
    mkdir -p "fs$folder"
    mount --bind "$folder" "fs$folder"
    mount -o remount,bind,ro "fs$folder"
done
for command in $absent; do
    rm -f "fs/usr/bin/$command" "fs/usr/local/bin/$command" "fs/usr/sbin/$command"
done
unset IFS

if [ -n "$mount_path" ]; then
    mkdir -p "fs$mount_path"
    if [ "$workspace_mib" -gt 0 ]; then
        if [ ! -f "$workspace.img" ]; then
            truncate -s "${workspace_mib}M" "$workspace.img"
            mkfs.ext4 -q -m 0 "$workspace.img"
        fi
        mount -o loop "$workspace.img" "fs$mount_path"
    else
        mount --bind "$workspace" "fs$mount_path"
    fi
fi

mount -t proc proc fs/proc
mount -t sysfs -o ro sysfs fs/sys
mount -t tmpfs -o mode=755 tmpfs fs/dev
for device in null zero full random urandom tty; do
    touch "fs/dev/$device"
    mount --bind "/dev/$device" "fs/dev/$device"
done
mkdir fs/dev/pts fs/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts fs/dev/pts
mount -t tmpfs -o mode=1777 tmpfs fs/dev/shm
ln -s pts/ptmx fs/dev/ptmx
ln -s /proc/self/fd fs/dev/fd
ln -s fd/0 fs/dev/stdin
ln -s fd/1 fs/dev/stdout
ln -s fd/2 fs/dev/stderr

rm -f fs/etc/ssh/ssh_host_* fs/etc/resolv.conf
# Nobody answers there, so that a name that cannot be looked up fails at once.
echo "nameserver 127.0.0.1" > fs/etc/resolv.conf
printf '127.0.0.1 localhost\n127.0.0.1 %s\n' "$RUNPOD_POD_ID" > fs/etc/hosts
cp -a "$tools/bin/." fs/usr/local/bin/
cp -a "$tools/home/." private/root/
chmod 700 private/root
hostname "$RUNPOD_POD_ID"

mkdir -p fs/.host
cd fs
pivot_root . .host
umount -l /.host
rmdir /.host
cd /

echo ready >&"$ready"
eval "exec $ready>&-"
read -r _ <&"$go"
eval "exec $go<&-"
unset OLDPWD
exec "$@"
