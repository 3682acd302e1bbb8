"""Real processes under real faults: kills, outages, damaged files, full and failing disks, power cuts, odd clocks."""
