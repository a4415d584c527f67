// Package backup is backups of guests, their retention, and the jobs that make them.
package backup
