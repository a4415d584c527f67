// Package replication keeps replication jobs and when they ran. No data moves.
package replication
