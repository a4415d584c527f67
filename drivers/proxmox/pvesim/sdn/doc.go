// Package sdn is software networks: zones, virtual networks, subnets, controllers, fabrics.
// What is written is pending until it is applied as a whole.
package sdn
