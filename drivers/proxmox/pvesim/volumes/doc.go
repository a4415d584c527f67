// Package volumes makes, copies and frees volumes on the storages of a host.
package volumes
