// Package consoles is terminals and screens of nodes and guests, behind websockets.
package consoles
