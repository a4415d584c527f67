package pvesim

// areaAcme is ACME accounts and certificates.
func areaAcme() area {
	return area{
		files: acmeFiles(),
		calls: acmeCalls(),
		begin: beginACME,
	}
}
