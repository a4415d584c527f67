// Package lxc is containers: configuration, creation and restore, clones, power, volumes
// and removal.
package lxc
