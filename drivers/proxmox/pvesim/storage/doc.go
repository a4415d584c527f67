// Package storage is the API for storages and their volumes, with uploads and downloads.
package storage
