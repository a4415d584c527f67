// Package property reads and prints what configuration files of Proxmox VE hold: a
// [Config] is the keys of one file or of one section, a value may be a property string
// (key=value,…), and drives and mount points are such strings with a volume. The API table
// ([pveapi]) says which keys there are and what is in them.
package property
